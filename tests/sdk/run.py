"""Runs the scenarios of the files named on the command line; see `common`."""

import sys

import common

sys.exit(0 if common.main(sys.argv[1:]) else 1)
