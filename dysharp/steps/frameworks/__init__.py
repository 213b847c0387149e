"""Training steps as frameworks write them down: arguments of Megatron-LM, recipes of Megatron-Bridge."""
