"""What Pax needs from rosetta: experiments and inputs, found by paxml through `--exp` or
`--fdl_config`.
"""
