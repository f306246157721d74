"""Compares the PyTorch twins with a second derivation of CORL's updates, term by term.

The code here is written as CORL states its equations:

- scalars per row as (B, 1) where CORL has them so,
- `mse_loss`, and `torch.distributions` for the policy,
- repeated states,
- gradients that are cleared before they count.

The twins are written for reading. Both must give the same bits, from the same weights and generator states. The log of
each update must be equal too, under CORL's names.
"""
