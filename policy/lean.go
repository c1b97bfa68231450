package policy

// lean is how much likelier or less likely dense objects are used again than
// others of their class and age: hazard × density^power, the proportional hazards
// of Cox (1972). What is used is compared with all that it stood beside, and one
// step of Newton's from 0 gives the power.
type lean struct {
	score, information float64 // faded
}

// note is a use of an object of a density beside others of a mean and a mean
// square of it, all in logarithms.
func (l *lean) note(density, mean, square float64) {
	l.score += density - mean
	l.information += max(0, square-mean*mean)
}

func (l *lean) fade(by float64) {
	l.score *= by
	l.information *= by
}

// power is at least -1, where what is dense is as much less likely to be used as
// it would save more.
func (l *lean) power() float64 {
	return min(max(l.score/(l.information+weight), -1), 1)
}
