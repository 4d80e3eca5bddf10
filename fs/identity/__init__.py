"""Who is who in an installation: certificates with a name and a role, from an authority of the installation's own."""
