"""With a learnt model of the environment."""
