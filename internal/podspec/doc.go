// Package podspec decides what of a pod crosses: Leave, what its home sends, and Admit, what
// the provider takes. Both are functions of values. Each decides for itself: the provider
// does not know that the other half ran.
package podspec
