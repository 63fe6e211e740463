// Package archtest holds the rules of this module as tests. Imports: the dependencies of
// every package, direct and through others, are compared with one table; a package that the
// table does not know fails too, so that a new one is placed on purpose. Docs: functions,
// tests, reasons and links that pages name exist, and docs/limits.md and docs/resources.md,
// which -update writes, are what the code says. Words: those that CONTRIBUTING.md prefers.
package archtest
