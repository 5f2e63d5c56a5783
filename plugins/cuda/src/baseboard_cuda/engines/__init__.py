"""Other people's attention in the place of ours, where it is installed, fits, and was asked for.

Keys and values are stored by our kernel all the same, in our layout: so each layer may have another engine, and copies
and swaps know of none of this. ``choice`` says which one a layer gets, and why the others do not.
"""
