// Package format writes the values of the admin API for people: names, amounts, money and
// times.
package format
