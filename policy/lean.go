package policy

// lean estimates how much more likely dense objects are used again than other objects of
// their class and age. In its model the hazard is proportional to density^power, the
// proportional hazards of Cox (1972). Each used object is compared with all objects of its
// cell, and one Newton step from 0 gives the power.
type lean struct {
	score, information float64 // faded
}

// note records the use of an object: its density, and the mean and the mean square of the
// densities in its cell. All densities are logarithms.
func (l *lean) note(density, mean, square float64) {
	l.score += density - mean
	l.information += max(0, square-mean*mean)
}

func (l *lean) fade(by float64) {
	l.score *= by
	l.information *= by
}

// power returns the power, from -1 to 1. At -1 savings and chances of use cancel out.
func (l *lean) power() float64 {
	return min(max(l.score/(l.information+weight), -1), 1)
}
