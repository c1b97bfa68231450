// Package gpuipctest helps to test what is built on gpuipc: Device is a device
// whose operations fail or stand still where a test says so, and Conformance is
// the suite that every implementation of gpuipc.Device must pass.
package gpuipctest
