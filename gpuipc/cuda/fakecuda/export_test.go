package fakecuda

// InjectText gives a fault as the environment does.
func (l *Library) InjectText(kind, spec string) bool { return l.fault(kind, spec) == 0 }
