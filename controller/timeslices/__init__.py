"""XCo's central controller: a process of its own that gives hosts their turns."""
