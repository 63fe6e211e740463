// Package podspec translates pods: Leave returns the form that home sends, and Admit the one that
// the provider runs. Both are pure functions. Each decides for itself: the provider does not rely
// on Leave.
package podspec
