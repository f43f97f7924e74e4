from accel_state.devices.backend import DeviceBackend as DeviceBackend
from accel_state.devices.backend import current_device_backend as current_device_backend
from accel_state.devices.backend import device_backend as device_backend
from accel_state.devices.backend import device_backend_of as device_backend_of
from accel_state.devices.backend import require_device_backend as require_device_backend
from accel_state.devices.vendors import Vendor as Vendor
from accel_state.devices.vendors import find_vendor as find_vendor
from accel_state.devices.vendors import known_vendors as known_vendors
