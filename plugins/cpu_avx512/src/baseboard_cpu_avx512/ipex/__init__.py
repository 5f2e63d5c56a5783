"""Attention by intel-extension-for-pytorch (IPEX) 2.8 instead of this plugin's own kernels.

Off unless asked for: its owner archived the project, names known security issues in it, and mends nothing any more.
"""
