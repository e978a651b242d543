// Package archtest holds the project's structure: which package may import which, and the rules of
// the house that a program can check. It has tests only.
package archtest
