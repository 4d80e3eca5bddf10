"""Where a namespace lies, copies of it on dataservers, and getting it back when it is lost."""
