"""What computes a JAX twin in the tests: an interpreter in NumPy, or compiled programs kept for a while."""
