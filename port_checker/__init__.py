"""Checks other people's ports of an algorithm against our PyTorch twin: `corl-twins check my_td3_bc.py`."""
