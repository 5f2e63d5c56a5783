"""Moving blocks between device and host.

::

    pairs --plan--> runs of adjacent blocks --descriptors--> (source, destination, size) --lanes--> the driver
"""
