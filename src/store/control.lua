-- Messages to members, over the channel of the fleet or over the member's own channel. control.rs reads them.
local function tell_joined(ctl, id) redis.call('SPUBLISH', ctl, 'joined|' .. id) end
local function tell_left(ctl, id) redis.call('SPUBLISH', ctl, 'left|' .. id) end
local function tell_dead(ctl, id) redis.call('SPUBLISH', ctl, 'dead|' .. id) end
local function tell_lead(ctl, id, term) redis.call('SPUBLISH', ctl, 'lead|' .. id .. '|' .. term) end
local function tell_free(ctl, id) redis.call('SPUBLISH', ctl, 'free|' .. id) end
local function tell_unlocked(member, name) return redis.call('SPUBLISH', member, 'lock|' .. name) end
local function tell_ordered(ctl) redis.call('SPUBLISH', ctl, 'ordered|') end
