"""The name under which every package is imported; the links lead to the folders beside this one."""
