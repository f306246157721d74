"""The PyTorch twins against a second derivation of CORL's updates, term by term.

What stands here is written as CORL states its equations:

- scalars per row as (B, 1) where CORL has them so,
- `mse_loss`, and `torch.distributions` for the policy,
- repeated states,
- gradients that are wiped before they count.

The twins are written for reading. Both must come to the same bits, from the same weights and generator states. What
each update logs must be equal too, under CORL's names.
"""
