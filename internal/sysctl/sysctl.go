// Package sysctl reads settings of the kernel.
package sysctl

import (
	"os"
	"strconv"
	"strings"
)

// Number reads a setting that is a number; -1 if there is none.
func Number(name string) int {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}
