// Package podstatus is what home shows of a pod that runs at a provider. The status that the provider
// sends is read within limits and reduced to what home uses, and becomes the status of the local
// pod: in home terms, and such that the API server takes it. What a pod shows that the provider has
// not taken, or has no longer, is here, too.
//
// All functions are pure: they take pods and the time as arguments, and return statuses.
package podstatus
