"""Runs the examples word for word. Where another package than theirs is tested, it goes by that
name: what its users write differs in that one word."""

import importlib
import os
import runpy
import sys

module = os.environ["FLOE_SDK"]
sys.modules.setdefault("ucloud_sandbox", importlib.import_module(module))
mode = os.environ["FLOE_SDK_MODE"]
name = "examples_ucloud.py" if mode == "sync" else "examples_ucloud_async.py"
runpy.run_path(os.path.join(os.path.dirname(__file__), name), run_name="__main__")
