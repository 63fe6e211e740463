//go:build !linux

package e2e

import "errors"

func inNetwork(string, func() error) error {
	return errors.New("networks of nodes and pods can be entered on Linux only")
}
