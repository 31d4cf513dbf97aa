-- Settings for the assembled scripts; `make lint` runs them by tools/luacheck.py.

-- What a script may use of Lua 5.1 and of Redis. Left out on purpose: what a server doesn't
-- have though an embedded one does (io, require, print), and what not every server has or
-- isn't exact (cjson, cmsgpack, struct, bit).
stds.redis_script = {
  read_globals = {
    'KEYS',
    'ARGV',
    'assert',
    'error',
    'ipairs',
    'math',
    'next',
    'pairs',
    'pcall',
    'select',
    'string',
    'table',
    'tonumber',
    'tostring',
    'type',
    'unpack',
    redis = {
      fields = { 'call', 'pcall', 'error_reply', 'status_reply', 'log', 'LOG_WARNING' },
    },
  },
}
std = 'redis_script'
max_line_length = 100
