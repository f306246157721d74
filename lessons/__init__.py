"""What the teaching pages show, as code: each step, each trap and each case is executed by `parity_tests`."""
