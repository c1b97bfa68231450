// Package gpuipctest helps to test code that uses gpuipc. Device is a device whose
// operations fail or wait where a test says so. Conformance is the suite that every
// implementation of gpuipc.Device must pass.
package gpuipctest
