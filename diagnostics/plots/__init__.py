"""Drawing functions: matplotlib and plotly, no TensorFlow. They draw recorded numbers, and measure nothing."""
