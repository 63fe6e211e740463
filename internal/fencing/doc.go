// Package fencing decides what happens to pods whose provider does not respond, as their namespace asks.
package fencing
