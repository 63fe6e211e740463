// Package services lets clusters use single Services of each other without offloading: Exports announces to
// consumers those that a policy exports to them, and Imports makes them Services of the consumer's cluster.
package services
