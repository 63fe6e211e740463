// Package automatic peers with clusters that discovery finds, as PeeringPolicies with spec.automatic say, and ends
// what no policy asks for any more.
package automatic
