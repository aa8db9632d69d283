-- Health of an AsyncActor: Healthy while it is Ready, which includes scaled to zero; otherwise what its state says.
local progressing = {
  Creating = true,
  WakingUp = true,
  ScalingUp = true,
  ScalingDown = true,
  Updating = true,
  Moving = true,
  WaitingForTarget = true,
  Terminating = true,
}
local status = obj.status or {}
local ready = false
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Paused" and condition.status == "True" then
    return { status = "Suspended", message = condition.message }
  end
  if condition.type == "Ready" and condition.status == "True" then
    ready = true
  end
end
local observed = status.observedGeneration
if status.status == nil or (observed ~= nil and observed < (obj.metadata.generation or 0)) then
  return { status = "Progressing", message = "Waiting for the operator to observe the spec" }
end
if ready then
  return { status = "Healthy", message = status.message or "" }
end
if progressing[status.status] then
  return { status = "Progressing", message = status.message or "" }
end
return { status = "Degraded", message = status.message or "" }
