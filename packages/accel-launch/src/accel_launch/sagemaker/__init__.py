"""Jobs on Amazon SageMaker: what is asked for as plain data, and handing it to Amazon's SDK."""
