"""The method: what one step computes, in numpy, from what the graphs say."""
