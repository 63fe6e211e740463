package lab

import (
	"strings"
	"testing"
)

func TestWhyPackagesNamesEachMissingOne(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	before := systemPath
	systemPath = nil
	t.Cleanup(func() { systemPath = before })
	why := WhyPackages()
	for _, pkg := range []string{"runc", "nftables", "wireguard-tools", "apt-get"} {
		if !strings.Contains(why, pkg) {
			t.Errorf("%q does not name %s", why, pkg)
		}
	}
}

func TestUnknownHostProgramsAreRefused(t *testing.T) {
	err := InstallHostPrograms(t.Context(), func(string) {}, "nosuchprogram")
	if err == nil || !strings.Contains(err.Error(), "nosuchprogram") {
		t.Errorf("error is %v", err)
	}
}
