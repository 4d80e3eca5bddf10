"""Plumbing shared by everything the controller serves over HTTP.

An application declares a route with `@route(...)` on a method and hands itself to `RestApplication.register`:
validation, error answers and the OpenAPI document follow from the declaration.
"""

from speedwell.controller.rest.application import RestApplication
from speedwell.controller.rest.routes import PlainText, route

__all__ = ["PlainText", "RestApplication", "route"]
