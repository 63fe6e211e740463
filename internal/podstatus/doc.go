// Package podstatus computes the status that home shows for a pod that runs at a provider. It decodes
// the provider's status within limits, reduces it to what home uses, and turns it into a status of
// the local pod that the API server accepts, with home's addresses. It also has the statuses of pods
// that the provider has not taken, or no longer has. The provider reduces a status in the same way before it
// sends it.
//
// All functions are pure: they take pods and the time as arguments, and return statuses.
package podstatus
