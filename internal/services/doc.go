// Package services lets clusters use single Services of each other without offloading: Exports
// tells consumers of those that a policy exports to them, and Imports makes them Services of
// the consumer's.
package services
