"""The built system as a stranger meets it: real processes, real sockets, nothing imported but what DESIGN promises."""
