package cuda

// Lost reports whether the device gives no more service. An error alone does not
// say so: what one client hands over may be refused by a device that is well.
func (d *device) Lost() bool { return d.lost.Load() != nil }
