// Package plan moves states and rows of leased segments to the places that a
// prompt wants them at. Geometry is where the parts of a profile's objects lie.
package plan
