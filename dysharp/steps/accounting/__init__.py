"""Parameters, operations and memory of whole models. See README.md of `dysharp/steps`."""
