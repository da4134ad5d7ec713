"""The contracts as test suites: inherit one to prove a format, a source or an encoding of your own. Imports pytest."""
