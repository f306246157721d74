"""The ladder that holds each pair of twins together."""
