package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// programs are those that a lab of real nodes takes from the machine, with the Debian packages that
// have them.
var programs = map[string]string{ //nolint:gochecknoglobals // a constant table
	"runc":             "runc",
	"nft":              "nftables",
	"iptables-restore": "iptables",
	"conntrack":        "conntrack",
	"ethtool":          "ethtool",
	"ip":               "iproute2",
	"ping":             "iputils-ping",
	"tcpdump":          "tcpdump",
	"nsenter":          "util-linux",
	"mount":            "mount",
	"wg":               "wireguard-tools",
}

// hostPrograms are those that tests run on hosts of a shared LAN and on nodes, with their packages: a
// lab itself needs none of them.
var hostPrograms = map[string]string{ //nolint:gochecknoglobals // a constant table
	"avahi-daemon": "avahi-daemon",
	"avahi-browse": "avahi-utils",
	"dbus-daemon":  "dbus",
	"ipset":        "ipset",
	"named":        "bind9",
	"dig":          "bind9-dnsutils",
	"nsupdate":     "bind9-dnsutils",
}

// systemPath is where programs for root are, also if PATH does not say so.
var systemPath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} //nolint:gochecknoglobals // a constant list

// WhyPackages says, before anything is installed, which Debian packages a lab installs on this
// machine and what for; empty means none.
func WhyPackages() string {
	missing := MissingPackages()
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("The clusters' nodes run programs of this machine: a container runtime, and tools that make and record networks. "+
		"Missing, and installed now with apt-get if this is Debian, are the packages %s. They stay when the clusters are gone.", strings.Join(missing, ", "))
}

// MissingPackages lists the Debian packages of the programs that this machine
// lacks.
func MissingPackages() []string { return missingOf(programs) }

func missingOf(programs map[string]string) []string {
	var missing []string
	for program, pkg := range programs {
		if !installed(program) && !slices.Contains(missing, pkg) {
			missing = append(missing, pkg)
		}
	}
	slices.Sort(missing)
	return missing
}

func installed(program string) bool {
	if _, err := exec.LookPath(program); err == nil {
		return true
	}
	return slices.ContainsFunc(systemPath, func(d string) bool {
		fi, err := os.Stat(filepath.Join(d, program))
		return err == nil && fi.Mode()&0o111 != 0
	})
}

// InstallPackages installs missing packages, if this is root on Debian; otherwise it lists them.
func InstallPackages(ctx context.Context, progress func(string)) error {
	return installPackages(ctx, MissingPackages, progress)
}

// InstallHostPrograms installs programs that tests run on a Host, such as avahi-daemon,
// as InstallPackages does. None of them is started on this machine.
func InstallHostPrograms(ctx context.Context, progress func(string), names ...string) error {
	want := map[string]string{}
	for _, n := range names {
		pkg, known := hostPrograms[n]
		if !known {
			return fmt.Errorf("no package is known that has the program %q", n)
		}
		want[n] = pkg
	}
	missing := func() []string { return missingOf(want) }
	if len(missing()) == 0 {
		return nil
	}
	// Debian starts what it installs, unless this says no (invoke-rc.d(8)).
	const policy = "/usr/sbin/policy-rc.d"
	if _, err := os.Stat(policy); os.IsNotExist(err) && os.Getuid() == 0 {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return err
		}
		defer func() { _ = os.Remove(policy) }()
	}
	return installPackages(ctx, missing, progress)
}

func installPackages(ctx context.Context, missingNow func() []string, progress func(string)) error {
	if len(missingNow()) == 0 {
		return nil
	}
	// Labs that are made at the same time install one after the other, and once.
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "packages.lock"), func() {
		progress("waiting for another process that installs packages")
	})
	if err != nil {
		return err
	}
	defer unlock()
	missing := missingNow()
	if len(missing) == 0 {
		return nil
	}
	if _, err := os.Stat("/etc/debian_version"); err != nil || os.Getuid() != 0 {
		return fmt.Errorf("programs are missing; install the packages %v (their names in Debian)", missing)
	}
	progress(fmt.Sprintf("installing Debian packages: %v", missing))
	for _, args := range [][]string{
		{"update", "--quiet"},
		append([]string{"install", "--quiet", "--yes", "--no-install-recommends"}, missing...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if err := runQuiet(cmd); err != nil {
			return fmt.Errorf("install packages %v: %w", missing, err)
		}
	}
	return nil
}

// runQuiet runs a command and puts what it says into the error.
func runQuiet(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, tail(out.String(), 5))
	}
	return nil
}
