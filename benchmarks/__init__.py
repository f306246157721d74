"""How fast each twin is, and how near to what the machine can do."""
